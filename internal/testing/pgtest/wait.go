package pgtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Patience is how long a test waits for something that must happen, on a busy machine too. It expires only if something
// is broken.
const Patience = 2 * time.Minute

// Receive waits for ch.
func Receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	select {
	case v := <-ch:
		return v
	case <-timeout.C:
		require.FailNow(t, "timeout", "waited %s for %s", Patience, what)
		panic("unreachable")
	}
}

// Settles waits until a query that returns one number returns want.
func Settles(t testing.TB, pool *pgxpool.Pool, want int, query string, args ...any) {
	t.Helper()
	got := -1
	Eventually(t, func() bool {
		return pool.QueryRow(context.Background(), query, args...).Scan(&got) == nil && got == want
	}, func() string { return fmt.Sprintf("%s: want %d, not %d", query, want, got) })
}

// Eventually calls look until it returns true. Unlike require.Eventually it does so in the goroutine of the test, so
// look may fail the test. what explains the failure if look never returns true.
func Eventually(t testing.TB, look func() bool, what ...func() string) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !look(); {
		if time.Now().After(deadline) {
			var texts []string
			for _, text := range what {
				texts = append(texts, text())
			}
			require.FailNow(t, "timeout", "waited %s: %s", Patience, strings.Join(texts, ", "))
		}
		<-time.After(Interval)
	}
}

const Interval = 5 * time.Millisecond // between two calls of look

// Check reports err from a goroutine, where require must not be used.
func Check(t testing.TB, err error) bool {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	return err == nil
}
