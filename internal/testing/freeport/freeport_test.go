package freeport_test

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
)

// TestFindIsNotWhatTheSystemHandsOut: a server that is stopped finds its port free again.
func TestFindIsNotWhatTheSystemHandsOut(t *testing.T) {
	t.Parallel()
	found := make(map[int]bool)
	const times = 1000
	for range times {
		port, err := freeport.Find()
		require.NoError(t, err)
		found[port] = true
	}
	require.Len(t, found, times, "none is found twice")
	for range 200 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.False(t, found[l.Addr().(*net.TCPAddr).Port])
		t.Cleanup(func() { _ = l.Close() })
	}
	for port := range found {
		_, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
		require.Error(t, err, "no other process finds it")
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
}

// TestReclaimWhileProcessesAreStarted: a port can be listened at again, although processes are started all the time.
func TestReclaimWhileProcessesAreStarted(t *testing.T) {
	t.Parallel()
	port, err := freeport.Find()
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	ctx, stop := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	defer starting.Wait()
	defer stop()
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "true").Run()
			}
		})
	}
	for range 3000 {
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.NoError(t, freeport.Reclaim(address))
	}
}
