package webhook

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLookupsAreBounded: the memory of lookups does not grow with the number of destinations.
func TestLookupsAreBounded(t *testing.T) {
	t.Parallel()
	config := Config{Lookup: func(context.Context, string) (Endpoint, error) {
		return Endpoint{URL: "https://example.com", Unsigned: true}, nil
	}}.withDefaults()
	for _, ttl := range []time.Duration{time.Hour, time.Nanosecond} {
		config.LookupTTL = ttl
		d := &directory{lookup: config.Lookup, config: &config, ctx: t.Context(), entries: make(map[string]*entry)}
		for i := range maxLookups + 10 {
			e, err := d.find(t.Context(), strconv.Itoa(i))
			require.NoError(t, err)
			require.Equal(t, strconv.Itoa(i), e.name)
		}
		require.LessOrEqual(t, len(d.entries), maxLookups)
	}
}
