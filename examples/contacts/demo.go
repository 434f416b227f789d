package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/contacts/contact"
	"github.com/outboxgen/outboxgen/examples/contacts/directory"
	"github.com/outboxgen/outboxgen/examples/contacts/events"
	"github.com/outboxgen/outboxgen/queue"
)

const (
	tenantCount   = 6
	shardCount    = 3
	conflictEvery = 10
)

// demo is one run for new tenants, so that it may be repeated in one database.
type demo struct {
	pool    *pgxpool.Pool
	out     io.Writer
	tenants []uuid.UUID
}

func newDemo(pool *pgxpool.Pool, out io.Writer) demo {
	d := demo{pool: pool, out: out}
	for range tenantCount {
		d.tenants = append(d.tenants, uuid.New())
	}
	return d
}

func (d demo) run(ctx context.Context, perTenant int) error {
	if err := d.linkAll(ctx, perTenant); err != nil {
		return err
	}
	if err := d.drainAll(ctx); err != nil {
		return err
	}
	return d.account(ctx)
}

// linkAll links identities for all tenants concurrently.
func (d demo) linkAll(ctx context.Context, perTenant int) error {
	tallies := make([]tally, len(d.tenants))
	err := together(len(d.tenants), func(i int) (err error) {
		tallies[i], err = d.linkTenant(ctx, d.tenants[i], perTenant)
		return err
	})
	if err != nil {
		return err
	}
	var sum tally
	for _, t := range tallies {
		sum.linked += t.linked
		sum.refused += t.refused
		sum.example = t.example
	}
	fmt.Fprintf(d.out, "%d tenants: %d identities linked\n", len(d.tenants), sum.linked)
	fmt.Fprintf(d.out, "%d refused, such as\n  %v\n", sum.refused, sum.example)
	return nil
}

// tally counts the results of the links of a tenant.
type tally struct {
	linked, refused int
	example         error
}

// linkTenant links n identities to one contact. After three of every ten it tries to link the same one, perhaps
// written otherwise, to another contact.
func (d demo) linkTenant(ctx context.Context, tenant uuid.UUID, n int) (tally, error) {
	var t tally
	var ada, bob uuid.UUID
	err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) (err error) {
		if ada, err = contact.Create(ctx, tx, tenant, "Ada"); err != nil {
			return err
		}
		bob, err = contact.Create(ctx, tx, tenant, "Bob")
		return err
	})
	if err != nil {
		return t, err
	}
	for i := range n {
		identity := contact.Identity{
			TenantID: tenant, ContactID: ada,
		}
		switch i % 3 {
		case 0:
			identity.Type, identity.Value = events.IdentityTypeExternalID, fmt.Sprintf("crm-%04d", i)
		case 1:
			identity.Type, identity.Value = events.IdentityTypeEmail, fmt.Sprintf("ada.%d@example.com", i)
		default:
			identity.Type, identity.Value = events.IdentityTypePhone, fmt.Sprintf("+49 30 %04d", i)
		}
		attempts := []contact.Identity{identity}
		if i%conflictEvery < 3 {
			same := identity
			same.ContactID, same.Value = bob, strings.ToUpper(strings.ReplaceAll(identity.Value, " ", "-"))
			if same.Type == events.IdentityTypeExternalID {
				same.Value = identity.Value
			}
			attempts = append(attempts, same)
		}
		for _, a := range attempts {
			if err := t.add(d.link(ctx, a)); err != nil {
				return t, err
			}
		}
	}
	return t, nil
}

// add counts err, and returns it if it is not an expected one.
func (t *tally) add(err error) error {
	var conflict *contact.ConflictError
	switch {
	case err == nil:
		t.linked++
	case !errors.As(err, &conflict):
		return err
	default:
		t.refused++
		t.example = err
	}
	return nil
}

// link does what a request handler of the service does: one transaction for the identity and its event.
func (d demo) link(ctx context.Context, i contact.Identity) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		_, err := contact.Link(ctx, tx, i)
		return err
	})
}

// drainAll delivers the events in shards of tenants. Here the shards are goroutines. They could also be processes
// or cron jobs, because no shard touches an event of another.
func (d demo) drainAll(ctx context.Context) error {
	start := time.Now()
	handler := &events.ContactsHandler{Directory: directory.New(d.pool)}
	reports := make([]queue.Report, shardCount)
	err := together(shardCount, func(i int) error {
		dispatcher, err := events.NewContactsDispatcher(d.pool, handler, queue.Config{TenantIDs: d.shard(i)})
		if err != nil {
			return err
		}
		reports[i], err = dispatcher.Drain(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for i, r := range reports {
		fmt.Fprintf(d.out, "shard %d (%d tenants): %d events delivered\n", i+1, len(d.shard(i)), r.Delivered)
	}
	fmt.Fprintf(d.out, "drained in %s\n", time.Since(start).Round(time.Millisecond))
	return nil
}

// shard returns the tenants of shard i. Each tenant is in one shard.
func (d demo) shard(i int) []uuid.UUID {
	size := len(d.tenants) / shardCount
	return d.tenants[i*size : (i+1)*size]
}

// account fails unless each identity has its event and its entry in the directory.
func (d demo) account(ctx context.Context) error {
	var identities, delivered, entries int
	err := d.pool.QueryRow(ctx, `
		SELECT
			(SELECT count(*) FROM crm.identities WHERE tenant_id = ANY ($1)),
			(SELECT count(*) FROM outbox.event_status WHERE tenant_id = ANY ($1) AND status = 'delivered'),
			(SELECT count(*) FROM crm.directory WHERE tenant_id = ANY ($1))`,
		d.tenants).Scan(&identities, &delivered, &entries)
	if err != nil {
		return fmt.Errorf("read account: %w", err)
	}
	fmt.Fprintf(d.out, "identities %d, events delivered %d, directory entries %d\n", identities, delivered, entries)
	if identities != delivered || identities != entries {
		return errors.New("identities, events and directory entries differ")
	}
	return nil
}

// together calls work for 0 to n-1 concurrently and returns the errors.
func together(n int, work func(i int) error) error {
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = work(i) })
	}
	running.Wait()
	return errors.Join(errs...)
}
