package emit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
)

// Without a form, the comments of the topics of a broker are those of a custom one.
func TestEveryBrokerHasAFormOfItsDestinations(t *testing.T) {
	t.Parallel()
	for _, b := range model.Brokers() {
		require.Contains(t, destinationForms, b)
	}
	require.Len(t, destinationForms, len(model.Brokers()))
}
