module github.com/outboxgen/outboxgen/telemetry/prometheus

go 1.26.0

require github.com/outboxgen/outboxgen v0.0.0

require github.com/prometheus/client_golang v1.25.0 // indirect

replace github.com/outboxgen/outboxgen => ../..
