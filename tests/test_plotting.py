"""Figures that scripts draw are the same files on every run."""

import matplotlib.pyplot as plt

from utils.plotting import save_svg


def test_a_figure_is_the_same_file_each_time_with_letters_as_paths(tmp_path):
    made = []
    for _ in range(2):
        figure, axes = plt.subplots()
        axes.set_title("a title")
        save_svg(figure, tmp_path / "figure.svg")
        made.append((tmp_path / "figure.svg").read_bytes())
        assert not plt.fignum_exists(figure.number)
    assert made[0] == made[1]
    assert b"<text" not in made[0] and b"<dc:date>" not in made[0]
