package driver

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo starts a server that sends back what it gets, behind a proxy, and returns a connection to it.
func echo(t *testing.T) (*proxy, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	p, err := newProxy(l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(p.close)
	c, err := net.Dial("tcp", p.addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = c.Write([]byte("ab"))
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, 2))
	require.NoError(t, err)
	return p, c
}

// TestProxyCutsAfterBytes: a connection that is cut after k bytes of replies has passed exactly those on.
func TestProxyCutsAfterBytes(t *testing.T) {
	t.Parallel()
	p, c := echo(t)
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		p.cutAfter(replies, 3, time.Minute)
	}()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.armed != nil
	}, time.Minute, time.Millisecond)
	_, err := c.Write([]byte("hello"))
	require.NoError(t, err)
	got, err := io.ReadAll(c)
	require.Error(t, err, "it is reset")
	require.LessOrEqual(t, len(got), 3)
	<-cut
}

// TestProxySwallows: what goes into a black hole never arrives, and the connection is reset afterwards.
func TestProxySwallows(t *testing.T) {
	t.Parallel()
	p, c := echo(t)
	over := make(chan struct{})
	go func() {
		defer close(over)
		p.hole([2]bool{replies: true}, 300*time.Millisecond)
	}()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.swallow[replies]
	}, time.Minute, time.Millisecond)
	_, err := c.Write([]byte("hello"))
	require.NoError(t, err)
	got, err := io.ReadAll(c)
	require.Error(t, err)
	require.Empty(t, got)
	<-over
}
