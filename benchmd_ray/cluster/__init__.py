"""The one place that starts or joins Ray; telemetry, hardware and GPU memory."""
