package outbox_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(comingBack{m}, goleak.IgnoreAnyFunction(pgtest.Supervisor))
}
