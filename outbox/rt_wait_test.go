package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what must happen, however busy the machine is; it only passes when something is
// broken.
const patience = 2 * time.Minute

// receive waits for ch.
func receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case v := <-ch:
		return v
	case <-timeout.C:
		require.FailNow(t, "timeout", "waited %s for %s", patience, what)
		panic("unreachable")
	}
}

// settles waits until a query that returns one number returns want.
func settles(t testing.TB, pool *pgxpool.Pool, want int, query string, args ...any) {
	t.Helper()
	got := -1
	eventually(t, func() bool {
		return pool.QueryRow(context.Background(), query, args...).Scan(&got) == nil && got == want
	}, func() string { return fmt.Sprintf("%s: want %d, not %d", query, want, got) })
}

// eventually looks until look returns true. Unlike require.Eventually it does so in the goroutine of the test, so that
// look may fail the test. What explains a look that never does.
func eventually(t testing.TB, look func() bool, what ...func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !look(); {
		if time.Now().After(deadline) {
			var texts []string
			for _, text := range what {
				texts = append(texts, text())
			}
			require.FailNow(t, "timeout", "waited %s: %s", patience, strings.Join(texts, ", "))
		}
		<-time.After(interval)
	}
}

const interval = 5 * time.Millisecond // between two looks

// check reports err from a goroutine, where require must not be used.
func check(t testing.TB, err error) bool {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	return err == nil
}
