package queue_test

import (
	"testing"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/runtimetest"
)

func TestMain(m *testing.M) {
	connect = pgtest.ExampleDatabase
	runtimetest.Main(m)
}
