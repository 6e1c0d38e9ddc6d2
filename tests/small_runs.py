"""Settings of runs that train for seconds."""

SMALL = {
    "encoder": "tiny",
    "pretrain": {"steps": 4, "batch_size": 16},
    "transfer": {"epochs": 2, "batch_size": 16, "mode": "finetune", "labels": "full"},
    "execution": {"device": "cpu"},
}
