package runtimetest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// Deaf returns a pool on the database of pool whose connections work, except that notifications do
// not get through, as for an idle client of a transaction pooler.
func Deaf(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t, pool))
	require.NoError(t, err)
	server := net.JoinHostPort(cfg.ConnConfig.Host, strconv.Itoa(int(cfg.ConnConfig.Port)))
	door, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var copies sync.WaitGroup
	copies.Go(func() {
		for {
			client, err := door.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			copies.Go(func() { _, _ = io.Copy(up, client); _ = up.Close() })
			copies.Go(func() { dropNotifications(client, up); _ = client.Close() })
		}
	})
	cfg.ConnConfig.Host, cfg.ConnConfig.Fallbacks = "127.0.0.1", nil
	cfg.ConnConfig.Port = uint16(door.Addr().(*net.TCPAddr).Port)
	deaf, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		deaf.Close()
		_ = door.Close()
		copies.Wait()
	})
	return deaf
}

// dropNotifications copies the messages of a server, except for NotificationResponse.
func dropNotifications(client io.Writer, server io.Reader) {
	in := bufio.NewReader(server)
	var head [5]byte
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		if head[0] != 'A' {
			if _, err := client.Write(append(head[:], body...)); err != nil {
				return
			}
		}
	}
}
