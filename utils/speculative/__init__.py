"""Speculative decoding: draft cheaply, verify exactly.

sampling    the rejection rule (`verify`), the warped laws it compares (`warp`), the residual
drafting    who proposes: prompt lookup, a draft model, a truncated copy of the target
cached      a causal language model together with the tokens whose keys and values it holds
decode      the loop: propose, verify, roll back; `stats` counts what happened
agreement   are two greedy texts equal, and if not, was it a near-tie?
theory      closed forms, and the exact output law of any sampler by enumeration
zoo         wrong samplers, each with the mistake it makes, and a right one that looks wrong
lawtest     chi-square test of a sampler against a law, with its power
"""
