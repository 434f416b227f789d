package driver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
)

// TestRowOfAnEvent: the history of a violation ends with what the tables have of the event.
func TestRowOfAnEvent(t *testing.T) {
	t.Parallel()
	require.NoError(t, Config{Seed: 1, Events: 40, Rate: 100}.run(t.Context(), true, func(d *driver) error {
		if err := d.write(t.Context()); err != nil {
			return err
		}
		if err := d.stopProcesses(shop.Writer); err != nil {
			return err
		}
		if err := d.settle(t.Context()); err != nil {
			return err
		}
		s, err := d.state(t.Context())
		for _, row := range s.Rows {
			want := map[bool]string{true: "rows: delivered: {", false: "rows: log: {"}[ofQueue[row.Topic] != ""]
			require.Contains(t, d.row(t.Context(), row.Event), want, row.Topic)
		}
		require.Equal(t, "rows: ", d.row(t.Context(), check.ID{}))
		return err
	}))
}
