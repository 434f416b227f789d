//go:build unix

package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// PgBouncer starts PgBouncer in front of the server of pool and returns a pool that goes through it. It skips the test
// if PgBouncer is not installed.
func PgBouncer(t testing.TB, pool *pgxpool.Pool, mode string) *pgxpool.Pool {
	t.Helper()
	binary, err := exec.LookPath("pgbouncer")
	if err != nil {
		binary = "/usr/sbin/pgbouncer" // not in everybody's PATH
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skip("NOT TESTED: there is no pgbouncer on this machine; install it with `apt-get install pgbouncer` or the like")
	}
	dir, err := os.MkdirTemp("", "bouncer") // short enough for a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := pool.Config().ConnConfig
	const port = 6432 // names the socket
	config := fmt.Sprintf("[databases]\n* = host=%s port=%d user=%s password='%s'\n"+
		"[pgbouncer]\nlisten_addr=\nunix_socket_dir=%s\nlisten_port=%d\nauth_type=any\npool_mode=%s\ndefault_pool_size=4\n",
		c.Host, c.Port, c.User, c.Password, dir, port, mode)
	file := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	// The shell ends PgBouncer when its input does, however this process ends.
	cmd := exec.Command("/bin/sh", "-c", `"$0" "$1" & cat; kill $! 2>/dev/null; wait`, binary, file)
	if os.Geteuid() == 0 { // which PgBouncer refuses to run as
		account, err := user.Lookup("nobody")
		require.NoError(t, err)
		uid, gid := number(t, account.Uid), number(t, account.Gid)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		require.NoError(t, errors.Join(os.Chown(dir, uid, gid), os.Chown(file, uid, gid)))
	}
	output, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer func() { _ = output.Close() }()
	cmd.Stdout, cmd.Stderr = output, output
	life, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = life.Close()
		_ = cmd.Wait()
	})
	cfg := pool.Config()
	cfg.ConnConfig.Host, cfg.ConnConfig.Port, cfg.ConnConfig.Fallbacks = dir, port, nil
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // prepared statements belong to a server connection
	through, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(through.Close)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return through.Ping(ctx) == nil
	}, pgtest.Patience, 20*time.Millisecond, "PgBouncer does not answer: %s", fileText(output.Name()))
	return through
}

// fileText is the text of a file when it is printed.
type fileText string

func (f fileText) String() string {
	text, _ := os.ReadFile(string(f))
	return string(text)
}

func number(t testing.TB, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}
