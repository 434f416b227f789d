package migrate_test

import (
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

func TestMain(m *testing.M) {
	connect = pgtest.ExampleEmpty
	m.Run()
	pgtest.EndExamples()
}
