package statements_test

import (
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

func TestMain(m *testing.M) { runtimetest.Main(m) }
