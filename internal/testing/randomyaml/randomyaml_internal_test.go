package randomyaml

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
)

// TestRandomYAMLHasEveryBroker: a new broker is drawn, too.
func TestRandomYAMLHasEveryBroker(t *testing.T) {
	t.Parallel()
	var drawn []model.Broker
	for _, form := range brokerForms {
		name, _, _ := strings.Cut(form, ":")
		drawn = append(drawn, model.Broker(name))
	}
	require.ElementsMatch(t, model.Brokers(), drawn)
}
