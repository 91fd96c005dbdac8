from samplewise.studies.mnist.dominance import compare, describe
from samplewise.studies.mnist.paper import TABLE


def test_a_row_is_beaten_only_on_both_counts_and_only_by_other_settings() -> None:
    paper = TABLE["fixed:100"].test
    ours = {
        "accurate": (paper.accuracy + 0.001, paper.satisfied - 0.001),
        "both": (paper.accuracy + 0.001, paper.satisfied + 0.001),
        "same": (paper.accuracy, paper.satisfied + 0.5),
        "penalty:100:1.01": (1.0, 1.0),
    }
    found = {each.row: each for each in compare(ours)}
    assert found["fixed:100"].by == ("both",)
    assert found.keys() == TABLE.keys() - {"classification"}
    text = describe(list(found.values()))
    assert "| fixed:100 | 0.9697 | 0.688 | `both` |" in text
    beaten = sum(1 for each in found.values() if each.by)
    assert f"{beaten} of 10 rows are beaten" in text
