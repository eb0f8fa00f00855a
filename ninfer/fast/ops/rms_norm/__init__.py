"""Zero-centred RMSNorm of rows, optionally written a second time in even-lanes-first order."""
