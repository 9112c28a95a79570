"""The long measurements of unit 04: many variants of one model, judged by several yardsticks."""
