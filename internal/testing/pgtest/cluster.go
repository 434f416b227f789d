package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/migrate"
)

const (
	databasePrefix = "outboxgen_test_"
	templatePrefix = "outboxgen_template_"
	// The first keys of our advisory locks. Every process holds ownerLock for its databases. templateLock is held while a
	// template is created.
	ownerLock    = 0x6f62_0001
	templateLock = 0x6f62_0002
)

// cluster is a server and a session on its maintenance database.
type cluster struct {
	base  string // connection string of any database of the server
	token int32  // part of the names of this process's databases; locked while the process lives
	last  atomic.Int64

	mu    sync.Mutex
	admin *pgx.Conn
	made  map[string]string // the names of the templates that exist, by what they hold besides the outbox
}

// connect opens the session, marks the databases of this process as in use, and drops the databases of processes that
// were killed: those whose token is not locked.
func connect(ctx context.Context, dsn string) (*cluster, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	var token [4]byte
	_, _ = rand.Read(token[:]) // never fails
	c := &cluster{base: dsn, token: int32(binary.BigEndian.Uint32(token[:]) >> 1), admin: conn}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1, $2)", ownerLock, c.token); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	if err := c.sweep(ctx); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return c, nil
}

var abandonedName = regexp.MustCompile(`^` + databasePrefix + `([0-9]{1,10})_[0-9]+$`)

func (c *cluster) sweep(ctx context.Context) error {
	rows, err := c.admin.Query(ctx, "SELECT datname FROM pg_database WHERE datname LIKE $1", databasePrefix+"%")
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		match := abandonedName.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		token, err := strconv.ParseInt(match[1], 10, 32)
		if err != nil || int32(token) == c.token {
			continue
		}
		// Trying the lock is not enough: its owner may hold it in another database of this server.
		var alive bool
		err = c.admin.QueryRow(ctx, `
			SELECT EXISTS (
				SELECT FROM pg_locks
				WHERE locktype = 'advisory' AND classid = $1 AND objid = $2 AND objsubid = 2)`,
			ownerLock, token).Scan(&alive)
		if err != nil {
			return err
		}
		if alive {
			continue
		}
		// Another process may be sweeping, too. The next process drops what is left.
		_, _ = c.admin.Exec(ctx, "DROP DATABASE IF EXISTS "+identifier(name)+" WITH (FORCE)")
	}
	return nil
}

// template returns the name of the template database with the migrated outbox, in which more was executed. The first
// process that needs these migrations creates it.
func (c *cluster) template(ctx context.Context, more string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name := c.made[more]; name != "" {
		return name, nil
	}
	if _, err := c.admin.Exec(ctx, "SELECT pg_advisory_lock($1, 0)", templateLock); err != nil {
		return "", err
	}
	name := templatePrefix + migrate.Hash()
	if more != "" {
		sum := sha256.Sum256([]byte(more))
		name += fmt.Sprintf("_%x", sum[:4])
	}
	err := c.makeTemplate(ctx, name, more)
	_, unlockErr := c.admin.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1, 0)", templateLock)
	if err := errors.Join(err, unlockErr); err != nil {
		return "", err
	}
	if c.made == nil {
		c.made = make(map[string]string)
	}
	c.made[more] = name
	return name, nil
}

// makeTemplate creates and migrates a database, and then renames it, so that an incomplete template is never used.
func (c *cluster) makeTemplate(ctx context.Context, name, more string) error {
	var exists bool
	err := c.admin.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists)
	if err != nil || exists {
		return err
	}
	draft := name + "_draft"
	for _, sql := range []string{
		"DROP DATABASE IF EXISTS " + identifier(draft) + " WITH (FORCE)",
		"CREATE DATABASE " + identifier(draft) + " TEMPLATE template0",
	} {
		if _, err := c.admin.Exec(ctx, sql); err != nil {
			return err
		}
	}
	dsn, err := withDatabase(c.base, draft)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	if _, err = migrate.Up(ctx, conn, Schema); err == nil && more != "" {
		_, err = conn.Exec(ctx, more)
	}
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	_, err = c.admin.Exec(ctx, "ALTER DATABASE "+identifier(draft)+" RENAME TO "+identifier(name))
	return err
}

// database copies a template and returns the URL of the copy. The copy is dropped after the test.
func (c *cluster) database(t testing.TB, template string) string {
	t.Helper()
	name, dsn, err := c.create(t.Context(), template)
	if err != nil {
		t.Fatalf("pgtest: create database: %v", err)
	}
	t.Cleanup(func() {
		trace(t, dsn)
		if err := c.drop(name); err != nil {
			t.Errorf("pgtest: drop database: %v", err)
		}
	})
	return dsn
}

// create copies a template and returns the name and the URL of the copy.
func (c *cluster) create(ctx context.Context, template string) (name, dsn string, err error) {
	name = fmt.Sprintf("%s%d_%d", databasePrefix, c.token, c.last.Add(1))
	if dsn, err = withDatabase(c.base, name); err != nil {
		return "", "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = c.admin.Exec(ctx, "CREATE DATABASE "+identifier(name)+" TEMPLATE "+identifier(template)+c.strategy(ctx))
	return name, dsn, err
}

// strategy returns the clause that makes a copy of a database fast: from PostgreSQL 15 on, the default writes all of it
// to the WAL, which takes four times as long as to copy its files, while fsync is off.
func (c *cluster) strategy(ctx context.Context) string {
	var clause string
	if c.admin.QueryRow(ctx, "SELECT CASE WHEN current_setting('server_version_num')::int >= 150000 AND NOT "+
		"current_setting('fsync')::boolean THEN ' STRATEGY file_copy' ELSE '' END").Scan(&clause) != nil {
		return ""
	}
	return clause
}

// drop drops a database and closes the connections to it.
func (c *cluster) drop(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.admin.Exec(ctx, "DROP DATABASE IF EXISTS "+identifier(name)+" WITH (FORCE)")
	return err
}

// withDatabase returns a connection string for another database of the same server.
func withDatabase(dsn, name string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// A key=value string: the last dbname wins.
		return dsn + " dbname=" + name, nil
	}
	u.Path = "/" + name
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String(), nil
}
