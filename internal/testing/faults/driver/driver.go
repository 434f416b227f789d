// Package driver runs the campaign of faults: it starts the servers, the brokers and the processes of a shop, does to them
// what a seed says, waits until all has settled, and has package check judge what happened.
package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/migrate"
)

// Config says how long a campaign is.
type Config struct {
	Seed   uint64
	Events int           // that are written at least
	Faults int           // that are caused; 0 means as many as fit into Time
	Time   time.Duration // after which no more faults are caused; 0 means when there were Faults
	// Rate is how many events per second are written. 0 means that Events are spread over the faults.
	Rate float64
	// Disk is a folder on a disk of its own, which may be filled, for the server; "" means that no disk is filled.
	Disk string
	// Keep is a folder for the history and the logs, which then stay. "" means a temporary one.
	Keep     string
	Progress io.Writer
}

// Schema is that of the outbox.
const schema = "outbox"

const (
	writers        = 4
	workers        = 3
	consumers      = 2
	items          = 60
	maxConnections = 120
)

// driver is a campaign.
type driver struct {
	Config
	dir      string
	history  string
	journal  *shop.Journal
	server   *pgserver.Server
	root     *pgxpool.Pool // of the superuser, in the database of the shop
	other    *pgxpool.Pool // of the superuser, in the database of the consumers
	operator *admin.Admin
	kafka    *kafka
	nats     *nats
	gate     *gate
	proxies  map[string]*proxy // by the role of who uses them, and nats
	slots    map[string][]*slot
	calm     bool
	edition  atomic.Int32
	can      map[string]bool // what not every machine can
	cannot   []string

	mu    sync.Mutex
	done  map[string]int   // faults by kind
	exits map[string]int   // ends of processes by role and status
	slow  atomic.Int64     // processes that had to be killed because they did not stop
	errs  map[string]error // of faults that could not be caused

	limits limits
}

// run starts everything, does do, and takes everything down again.
func (c Config) run(ctx context.Context, calm bool, do func(*driver) error) (err error) {
	d := &driver{
		Config: c, calm: calm, proxies: make(map[string]*proxy), slots: make(map[string][]*slot), done: make(map[string]int), exits: make(map[string]int),
		errs: make(map[string]error), can: make(map[string]bool),
	}
	d.edition.Store(1)
	if d.dir = c.Keep; d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "outboxgen-faults-"); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	} else if err := makeDir(d.dir); err != nil {
		return err
	}
	d.history = filepath.Join(d.dir, "history.jsonl")
	_ = os.Remove(d.history) // of an earlier campaign
	if d.journal, err = shop.OpenJournal(d.history, "driver"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	if err := d.startServers(ctx); err != nil {
		return err
	}
	d.probe()
	if err := d.startProcesses(); err != nil {
		return err
	}
	return do(d)
}

func (d *driver) say(format string, args ...any) {
	if d.Progress != nil {
		_, _ = fmt.Fprintf(d.Progress, time.Now().Format("15:04:05 ")+format+"\n", args...)
	}
}

const application = "app" // the role of all processes

func (d *driver) startServers(ctx context.Context) (err error) {
	d.say("start PostgreSQL, Kafka and NATS")
	if d.server, err = pgserver.Start(pgserver.Options{Dir: d.Disk, MaxConnections: maxConnections, Settings: map[string]string{
		"checkpoint_timeout": "30s", "max_wal_size": "256MB", "wal_writer_delay": "1s", "log_min_duration_statement": "2000",
	}}); err != nil {
		return err
	}
	if err := d.createDatabases(ctx); err != nil {
		return err
	}
	if d.kafka, err = startKafka(d.dir); err != nil {
		return err
	}
	if d.nats, err = startNATS(ctx, d.dir); err != nil {
		return err
	}
	database := net.JoinHostPort("127.0.0.1", strconv.Itoa(d.server.Port()))
	for name, target := range map[string]string{shop.Writer: database, shop.Worker: database, shop.Consumer: database, "nats": d.nats.addr()} {
		if d.proxies[name], err = newProxy(target); err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) createDatabases(ctx context.Context) error {
	first, err := d.rootPool(ctx, "postgres")
	if err != nil {
		return err
	}
	defer first.Close()
	for _, sql := range []string{
		"CREATE ROLE " + application + " LOGIN PASSWORD '" + application + "'",
		"CREATE DATABASE shop OWNER " + application, "CREATE DATABASE other OWNER " + application,
	} {
		if _, err := first.Exec(ctx, sql); err != nil {
			return fmt.Errorf("create database: %w", err)
		}
	}
	for _, db := range []struct {
		name, sql string
		pool      **pgxpool.Pool
	}{{"shop", shop.Tables + watchTables, &d.root}, {"other", shop.EffectTables, &d.other}} {
		if *db.pool, err = d.rootPool(ctx, db.name); err != nil {
			return err
		}
		owner, err := pgxpool.New(ctx, d.url(db.name, ""))
		if err != nil {
			return fmt.Errorf("open database: %w", err)
		}
		defer owner.Close()
		if _, err := migrate.Up(ctx, owner, schema); err != nil {
			return err
		}
		if _, err := owner.Exec(ctx, db.sql); err != nil {
			return fmt.Errorf("create tables: %w", err)
		}
		if db.name == "shop" {
			if err := shop.CreateItems(ctx, owner, items); err != nil {
				return err
			}
		}
	}
	d.operator, err = admin.New(d.root, schema)
	return err
}

// rootPool is for the driver itself: nothing that is done to the processes concerns it.
func (d *driver) rootPool(ctx context.Context, database string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(d.server.URLOf(database))
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	cfg.MaxConns = 10
	cfg.ConnConfig.RuntimeParams["application_name"] = operatorName
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return pool, nil
}

// url is that of a database for the processes of a role, which go through its proxy. "" goes there directly.
func (d *driver) url(database, role string) string {
	host := net.JoinHostPort("127.0.0.1", strconv.Itoa(d.server.Port()))
	if role != "" {
		host = d.proxies[role].addr()
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(application, application), Host: host, Path: "/" + database}
	u.RawQuery = url.Values{"sslmode": {"disable"}, "application_name": {role}, "connect_timeout": {"5"}}.Encode()
	return u.String()
}

// probe finds out what this machine can.
func (d *driver) probe() {
	d.can[needsDisk] = d.Disk != ""
	self, err := os.Executable()
	if err == nil {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), shop.Variable+`={"Role":"clock"}`, shop.ClockVariable+"=1")
		text, err := cmd.Output()
		d.can[needsClock] = err == nil && len(text) > 0 && string(text) != "0\n"
	}
}

func (d *driver) startProcesses() error {
	rate := d.Rate
	if rate == 0 {
		rate = float64(d.Events) / max(d.expected().Seconds(), 1)
	}
	d.say("%d writers with %.0f events per second in all, %d workers, %d consumers", writers, rate, workers, consumers)
	var listens []string
	for range consumers {
		port, err := freeport.Find()
		if err != nil {
			return err
		}
		listens = append(listens, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	var err error
	if d.gate, err = startGate(listens); err != nil {
		return err
	}
	for role, n := range map[string]int{shop.Writer: writers, shop.Worker: workers, shop.Consumer: consumers} {
		for i := range n {
			d.slots[role] = append(d.slots[role], d.newSlot(role, i+1, func() shop.Orders {
				o := shop.Orders{
					History: d.history, Edition: int(d.edition.Load()), Seed: d.Seed<<16 ^ uint64(i)<<8, Database: d.url("shop", role),
					Inbox: d.url("other", shop.Consumer), Kafka: d.kafka.addrs, NATS: "nats://" + d.proxies["nats"].addr(), Webhook: d.gate.url,
					Items: items, Rate: rate / writers, Calm: d.calm,
				}
				if role == shop.Consumer {
					o.Listen = listens[i]
				}
				return o
			}))
		}
	}
	for _, of := range d.slots {
		for _, s := range of {
			s.awaitReady()
		}
	}
	return nil
}

// ended notes that a process has ended.
func (d *driver) ended(role string, err error) {
	status := "exit status 0"
	if err != nil {
		status = err.Error()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.exits[role+": "+status]++
}

// stop ends whatever runs.
func (d *driver) stop() error {
	var errs []error
	for _, role := range []string{shop.Writer, shop.Worker, shop.Consumer} {
		errs = append(errs, d.stopProcesses(role))
	}
	for _, p := range d.proxies {
		if p != nil {
			p.close()
		}
	}
	if d.gate != nil {
		errs = append(errs, d.gate.server.Close())
	}
	if d.nats != nil {
		d.nats.stop()
	}
	if d.kafka != nil {
		d.kafka.stop()
	}
	for _, pool := range []*pgxpool.Pool{d.root, d.other} {
		if pool != nil {
			pool.Close()
		}
	}
	if d.server != nil {
		errs = append(errs, d.server.Stop())
	}
	return errors.Join(errs...)
}

// stopProcesses ends the processes of a role, all at once.
func (d *driver) stopProcesses(role string) error {
	var ending sync.WaitGroup
	errs := make([]error, len(d.slots[role]))
	for i, s := range d.slots[role] {
		ending.Go(func() { errs[i] = s.close() })
	}
	ending.Wait()
	d.slots[role] = nil
	return errors.Join(errs...)
}

// Run runs a campaign and returns its account.
func Run(ctx context.Context, c Config) (account *Account, err error) {
	began := time.Now()
	err = c.run(ctx, false, func(d *driver) error {
		if err := d.cause(ctx); err != nil {
			return err
		}
		account, err = d.judge(ctx, check.Rules{})
		return err
	})
	if account != nil {
		account.Took = time.Since(began)
	}
	return account, err
}

// Calm runs the same without any fault: no handler may see an event twice.
func Calm(ctx context.Context, c Config) (account *Account, err error) {
	began := time.Now()
	err = c.run(ctx, true, func(d *driver) error {
		if err := d.write(ctx); err != nil {
			return err
		}
		account, err = d.judge(ctx, check.Rules{Calm: true})
		return err
	})
	if account != nil {
		account.Took = time.Since(began)
	}
	return account, err
}

// rng returns what draws for one purpose.
func (d *driver) rng(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(d.Seed, purpose)) }
