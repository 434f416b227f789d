module github.com/outboxgen/outboxgen/docs

go 1.26.0

require (
	github.com/google/uuid v1.6.0
	github.com/jackc/pgx/v5 v5.12.0
	github.com/outboxgen/outboxgen v0.0.0
	github.com/outboxgen/outboxgen/consume/amqp v0.0.0
	github.com/outboxgen/outboxgen/consume/kafka v0.0.0
	github.com/outboxgen/outboxgen/consume/nats v0.0.0
	github.com/outboxgen/outboxgen/consume/redis v0.0.0
	github.com/outboxgen/outboxgen/publish/amqp v0.0.0
	github.com/outboxgen/outboxgen/publish/kafka v0.0.0
	github.com/outboxgen/outboxgen/publish/nats v0.0.0
	github.com/outboxgen/outboxgen/publish/redis v0.0.0
	github.com/outboxgen/outboxgen/publish/webhook v0.0.0
	github.com/outboxgen/outboxgen/telemetry/otel v0.0.0
	github.com/outboxgen/outboxgen/telemetry/prometheus v0.0.0
	github.com/prometheus/client_golang v1.25.0
	github.com/stretchr/testify v1.12.1
	github.com/twmb/franz-go v1.22.2
	go.opentelemetry.io/otel v1.47.0
	golang.org/x/sync v0.24.0
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dave/jennifer v1.7.1 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/nats-io/nats.go v1.55.0 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	github.com/pierrec/lz4/v4 v4.1.33 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.1 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/rabbitmq/amqp091-go v1.16.0 // indirect
	github.com/redis/go-redis/v9 v9.23.0 // indirect
	github.com/rogpeppe/go-internal v1.16.0 // indirect
	github.com/sourcegraph/jsonrpc2 v0.2.3 // indirect
	github.com/spf13/cobra v1.10.2 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	github.com/twmb/franz-go/pkg/kadm v1.19.0 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.15.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel/log v1.47.0 // indirect
	go.opentelemetry.io/otel/metric v1.47.0 // indirect
	go.opentelemetry.io/otel/trace v1.47.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/tools v0.51.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

tool github.com/outboxgen/outboxgen/cmd/outboxgen

replace github.com/outboxgen/outboxgen => ..

replace github.com/outboxgen/outboxgen/consume/kafka => ../consume/kafka

replace github.com/outboxgen/outboxgen/publish/kafka => ../publish/kafka

replace github.com/outboxgen/outboxgen/publish/nats => ../publish/nats

replace github.com/outboxgen/outboxgen/consume/nats => ../consume/nats

replace github.com/outboxgen/outboxgen/consume/amqp => ../consume/amqp

replace github.com/outboxgen/outboxgen/consume/redis => ../consume/redis

replace github.com/outboxgen/outboxgen/publish/amqp => ../publish/amqp

replace github.com/outboxgen/outboxgen/publish/redis => ../publish/redis

replace github.com/outboxgen/outboxgen/publish/webhook => ../publish/webhook

replace github.com/outboxgen/outboxgen/telemetry/otel => ../telemetry/otel

replace github.com/outboxgen/outboxgen/telemetry/prometheus => ../telemetry/prometheus
