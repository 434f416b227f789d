package listener_test

import (
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

func TestMain(m *testing.M) {
	connect = pgtest.ExampleDatabase
	runtimetest.Main(m)
}
