"""The paper's second study, last part: what a watermark does to the diagnosis of chest X-rays (Table II)."""
