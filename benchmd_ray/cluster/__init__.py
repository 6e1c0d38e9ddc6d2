"""The only place that starts or joins Ray; telemetry, hardware, GPU memory."""
