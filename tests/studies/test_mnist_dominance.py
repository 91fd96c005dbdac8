from samplewise.studies.mnist.dominance import compare, describe
from samplewise.studies.mnist.table_one import TABLE_ONE


def test_a_row_is_beaten_only_on_both_counts_and_only_by_other_settings() -> None:
    _, accuracy, _, _, satisfied = TABLE_ONE["fixed:100"]["test"]
    ours = {
        "accurate": (accuracy + 0.001, satisfied - 0.001),
        "both": (accuracy + 0.001, satisfied + 0.001),
        "same": (accuracy, satisfied + 0.5),
        "penalty:100:1.01": (1.0, 1.0),
    }
    found = {each.row: each for each in compare(ours)}
    assert found["fixed:100"].by == ("both",)
    assert found.keys() == TABLE_ONE.keys() - {"classification"}
    text = describe(list(found.values()))
    assert "| fixed:100 | 0.9697 | 0.688 | `both` |" in text
    beaten = sum(1 for each in found.values() if each.by)
    assert f"{beaten} of 10 rows are beaten" in text
