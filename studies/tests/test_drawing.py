from studies.drawing import label_points, new_figure, styled


def test_names_do_not_cover_each_other() -> None:
    with styled():
        figure, (panel,) = new_figure(1, 1)
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1)
        label_points(panel, [(0.5, 0.5 + 0.001 * i, f"name {i}", "black") for i in range(6)], others=[(0.52, 0.5)])
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in panel.texts]
    assert len(boxes) == 6
    for i, box in enumerate(boxes):
        assert not any(box.shrunk(0.9, 0.7).overlaps(other.shrunk(0.9, 0.7)) for other in boxes[:i])
