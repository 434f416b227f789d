module github.com/outboxgen/outboxgen/telemetry/promtest

go 1.26.0

require (
	github.com/outboxgen/outboxgen v0.0.0
	github.com/outboxgen/outboxgen/telemetry/prometheus v0.0.0
	github.com/prometheus/client_golang v1.25.0
	github.com/prometheus/prometheus v0.316.0
	github.com/stretchr/testify v1.12.1
)

replace (
	github.com/outboxgen/outboxgen => ../..
	github.com/outboxgen/outboxgen/telemetry/prometheus => ../prometheus
)
