package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/mailer/events"
	"github.com/outboxgen/outboxgen/examples/mailer/mail"
	"github.com/outboxgen/outboxgen/examples/mailer/provider"
	"github.com/outboxgen/outboxgen/examples/mailer/sender"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/worker"
)

const (
	// The provider takes rate mails of a mailbox in a minute, as in outbox.yaml.
	rate = 10
	// The large tenant has mailboxes of boxMails mails each, and one of burst mails.
	mailboxes, boxMails, burst = 20, 8, 15
	// Each small tenant has so many mails, all of one mailbox.
	small = 3
	// readers are those of the digest of the large tenant.
	readers       = 250
	callTakes     = 5 * time.Millisecond
	printInterval = 100 * time.Millisecond
)

// demo is one run for new tenants, so that it may be repeated in one database.
type demo struct {
	pool     *pgxpool.Pool
	out      io.Writer
	provider *provider.Provider
	tenants  []uuid.UUID // the large one, then the small ones
	busy     uuid.UUID   // the mailbox with the burst
}

func newDemo(pool *pgxpool.Pool, out io.Writer) demo {
	return demo{
		pool: pool, out: out, provider: provider.New(rate, time.Minute, callTakes),
		tenants: []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}, busy: uuid.New(),
	}
}

func (d demo) run(ctx context.Context) error {
	if err := d.writeAll(ctx); err != nil {
		return err
	}
	if err := d.sendAll(ctx); err != nil {
		return err
	}
	return d.account(ctx)
}

// writeAll writes the mails of the large tenant and its digest, and then those of the small tenants.
func (d demo) writeAll(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		for range mailboxes {
			if err := write(ctx, tx, d.tenants[0], uuid.New(), boxMails); err != nil {
				return err
			}
		}
		if err := write(ctx, tx, d.tenants[0], d.busy, burst); err != nil {
			return err
		}
		digest := mail.Digest{TenantID: d.tenants[0], Text: "What is new", Readers: make(map[uuid.UUID]string)}
		for i := range readers {
			digest.Readers[uuid.New()] = fmt.Sprintf("reader.%d@example.com", i)
		}
		_, err := mail.WriteDigest(ctx, tx, digest)
		return err
	})
	if err != nil {
		return err
	}
	for _, tenant := range d.tenants[1:] {
		if err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return write(ctx, tx, tenant, uuid.New(), small) }); err != nil {
			return err
		}
	}
	fmt.Fprintf(d.out, "a large tenant writes %d mails and a digest for %d readers, two small ones %d mails each\n",
		mailboxes*boxMails+burst, readers, small)
	return nil
}

func write(ctx context.Context, tx pgx.Tx, tenant, mailbox uuid.UUID, n int) error {
	for i := range n {
		if _, err := mail.Write(ctx, tx, mail.Mail{
			TenantID: tenant, MailboxID: mailbox, To: "ada@example.com", Subject: fmt.Sprintf("No. %d", i+1), Text: "Hello!",
		}); err != nil {
			return err
		}
	}
	return nil
}

// sendAll runs two dispatchers until only those mails are left that the rate holds back. The dispatchers could also be two
// processes, because the limits are kept in the database.
func (d demo) sendAll(ctx context.Context) error {
	var parts []worker.Part
	for _, name := range []string{"first", "second"} {
		handler := &events.MailsHandler{Sender: sender.New(d.pool, d.provider)}
		dispatcher, err := events.NewMailsDispatcher(d.pool, handler, queue.Config{})
		if err != nil {
			return err
		}
		parts = append(parts, worker.Part{Name: name, Runner: dispatcher})
	}
	both, err := worker.New(parts...)
	if err != nil {
		return err
	}
	sending, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	var runErr error
	go func() {
		defer close(stopped)
		runErr = both.Run(sending)
	}()
	watchErr := d.watch(ctx, stopped)
	stop()
	<-stopped
	return errors.Join(watchErr, runErr)
}

// watch prints what is left until it is what the rate holds back, ctx ends or the dispatchers stop.
func (d demo) watch(ctx context.Context, stopped <-chan struct{}) error {
	tick := time.NewTicker(printInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-stopped:
			return errors.New("the dispatchers stopped early")
		}
		var mails, digests, held int
		err := d.pool.QueryRow(ctx, `
			SELECT
				(SELECT count(*) FROM mailer.mails WHERE tenant_id = ANY ($1) AND sent_at IS NULL),
				(SELECT count(*) FROM mailer.digests WHERE tenant_id = ANY ($1) AND sent_at IS NULL),
				(SELECT count(*) FROM mailer.mails WHERE mailbox_id = $2 AND sent_at IS NULL)`,
			d.tenants, d.busy).Scan(&mails, &digests, &held)
		if err != nil {
			return fmt.Errorf("count what is left: %w", err)
		}
		fmt.Fprintf(d.out, "left: %4d mails, %4d digests\n", mails, digests)
		if mails == held && digests == 0 && held <= burst-rate {
			return nil
		}
	}
}

// account fails unless everything else was sent, and the provider has refused nothing.
func (d demo) account(ctx context.Context) error {
	var mails, sent, digests int
	err := d.pool.QueryRow(ctx, `
		SELECT
			(SELECT count(*) FROM mailer.mails WHERE tenant_id = ANY ($1)),
			(SELECT count(*) FROM mailer.mails WHERE tenant_id = ANY ($1) AND sent_at IS NOT NULL),
			(SELECT count(*) FROM mailer.digests WHERE tenant_id = ANY ($1) AND sent_at IS NOT NULL)`,
		d.tenants).Scan(&mails, &sent, &digests)
	if err != nil {
		return fmt.Errorf("read account: %w", err)
	}
	books := d.provider.Books()
	fmt.Fprintf(d.out, "mails %d, sent %d, held back by the rate of a mailbox %d\n", mails, sent, mails-sent)
	fmt.Fprintf(d.out, "digests %d, in %d calls, the largest with %d\n", digests, len(books.Batches), slices.Max(books.Batches))
	fmt.Fprintf(d.out, "at once: at most %d of a mailbox, %d of a tenant; refused by the provider: %d\n", books.Most[d.busy],
		books.Most[d.tenants[0]], books.Refused)
	for i, tenant := range d.tenants {
		took, err := d.lastOf(ctx, tenant)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "tenant %d: the last mail was sent %s after it was written\n", i+1, took.Round(time.Millisecond))
	}
	if mails-sent > burst-rate || digests != readers || books.Refused > 0 {
		return errors.New("not all were sent as they should be")
	}
	return nil
}

// lastOf returns the longest time from the writing of a mail of the tenant until it was sent.
func (d demo) lastOf(ctx context.Context, tenant uuid.UUID) (took time.Duration, err error) {
	err = d.pool.QueryRow(ctx, "SELECT max(sent_at - created_at) FROM mailer.mails WHERE tenant_id = $1", tenant).Scan(&took)
	if err != nil {
		return 0, fmt.Errorf("read times: %w", err)
	}
	return took, nil
}
