package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/faults/driver"
	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
)

// TestMain is also the main function of the processes of the shop.
func TestMain(m *testing.M) {
	if orders := os.Getenv(shop.Variable); orders != "" {
		os.Exit(shop.Main(orders))
	}
	os.Exit(m.Run())
}

// TestFaults is the short form of `make faults`: at least 20 kinds of fault, 100 faults, 20,000 events. Nothing that was
// committed is lost, nothing else is seen, and no key gets out of order.
func TestFaults(t *testing.T) {
	t.Parallel()
	c := driver.Config{Seed: 1, Events: 20_000, Faults: 100, Progress: t.Output()}
	account, err := driver.Run(t.Context(), c)
	require.NoError(t, err)
	t.Log(account)
	require.True(t, account.OK(), "see the account")
	require.GreaterOrEqual(t, len(account.Faults), 20, "kinds of fault")
	require.GreaterOrEqual(t, account.Total(), 100)
	require.GreaterOrEqual(t, account.Committed+account.Resolved, 20_000)
	require.Positive(t, account.Duplicates, "some fault was felt")
}

// TestNoFaults: when nothing is done to the processes, no handler sees an event twice.
func TestNoFaults(t *testing.T) {
	t.Parallel()
	account, err := driver.Calm(t.Context(), driver.Config{Seed: 1, Events: 3000, Progress: t.Output()})
	require.NoError(t, err)
	t.Log(account)
	require.True(t, account.OK(), "see the account")
	require.GreaterOrEqual(t, account.Committed, 3000)
	require.Zero(t, account.Duplicates)
}
