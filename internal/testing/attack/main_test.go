// Package attack tries what somebody might do who means harm: a role of the database, a neighbour in it, a broker, a
// browser, whoever writes a payload or an outbox.yaml. docs/operate/security.md says what each row of its table is shown by.
package attack_test

import (
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

func TestMain(m *testing.M) { runtimetest.Main(m) }
