package freeport_test

import (
	"fmt"
	"net"
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
