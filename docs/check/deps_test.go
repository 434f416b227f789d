package check

// What the blocks import: the module of the blocks has the requirements of this module.
import (
	_ "github.com/google/uuid"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/twmb/franz-go/pkg/kgo"
	_ "go.opentelemetry.io/otel/propagation"
	_ "golang.org/x/sync/errgroup"

	_ "github.com/outboxgen/outboxgen/consume/amqp"
	_ "github.com/outboxgen/outboxgen/consume/kafka"
	_ "github.com/outboxgen/outboxgen/consume/nats"
	_ "github.com/outboxgen/outboxgen/consume/redis"
	_ "github.com/outboxgen/outboxgen/publish/amqp"
	_ "github.com/outboxgen/outboxgen/publish/kafka"
	_ "github.com/outboxgen/outboxgen/publish/nats"
	_ "github.com/outboxgen/outboxgen/publish/redis"
	_ "github.com/outboxgen/outboxgen/publish/webhook"
	_ "github.com/outboxgen/outboxgen/telemetry/otel"
	_ "github.com/outboxgen/outboxgen/telemetry/prometheus"
)
