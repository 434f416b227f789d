package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/threads/web"
)

// patience is how long the conversation may take.
const patience = time.Minute

// demo is one conversation in a new thread, so that it may be repeated in one database.
type demo struct {
	pool           *pgxpool.Pool
	tenant, thread uuid.UUID
	out            io.Writer
}

func newDemo(pool *pgxpool.Pool, out io.Writer) demo {
	return demo{pool: pool, tenant: uuid.New(), thread: uuid.New(), out: out}
}

// run plays the conversation with s, stops s, and checks the database.
func (d demo) run(ctx context.Context, s *service) error {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- s.run(serving, l) }()
	talkErr := d.talk(ctx, web.NewClient("http://"+l.Addr().String(), d.tenant, d.thread))
	stop()
	if err := errors.Join(talkErr, <-stopped); err != nil {
		return err
	}
	return d.account(ctx)
}

// talk plays two users. The companion answers each of their messages.
func (d demo) talk(ctx context.Context, c *web.Client) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.Create(ctx); err != nil {
		return err
	}
	ada, bob := d.user("ada", c), d.user("bob", c)
	return inOrder(
		func() error { return ada.watch(ctx) },
		func() error { return bob.watch(ctx) },
		func() error { return ada.post(ctx, "Does the ferry run today?") },
		func() error { return ada.see(2) },
		func() error { return bob.see(2) },
		bob.leave,
		func() error { return ada.post(ctx, "Then I take the bus.") },
		func() error { return ada.see(2) },
		func() error { return bob.watch(ctx) },
		func() error { return bob.see(2) },
		func() error { return bob.postTwice(ctx, "Save me a seat!") },
		func() error { return bob.see(2) },
		func() error { return ada.see(2) },
		ada.leave,
		bob.leave,
	)
}

func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// user is a person who reads and writes in the thread.
type user struct {
	name   string
	client *web.Client
	feed   *web.Feed // nil when not watching
	last   int64     // number of the latest message seen
	out    io.Writer
}

func (d demo) user(name string, c *web.Client) *user {
	return &user{name: name, client: c, out: d.out}
}

func (u *user) say(format string, args ...any) {
	_, _ = fmt.Fprintf(u.out, u.name+" "+format+"\n", args...)
}

func (u *user) watch(ctx context.Context) (err error) {
	if u.last == 0 {
		u.say("watches the thread")
	} else {
		u.say("comes back and asks for the messages after message %d", u.last)
	}
	u.feed, err = u.client.Follow(ctx, u.last)
	return err
}

func (u *user) leave() error {
	u.say("leaves")
	return u.feed.Close()
}

func (u *user) post(ctx context.Context, text string) error {
	m, err := u.client.Post(ctx, uuid.New(), u.name, text)
	if err != nil {
		return err
	}
	u.say("posts message %d", m.Number)
	return nil
}

// postTwice posts a message twice, like a client whose connection broke before the answer arrived.
func (u *user) postTwice(ctx context.Context, text string) error {
	id := uuid.New()
	first, err := u.client.Post(ctx, id, u.name, text)
	if err != nil {
		return err
	}
	second, err := u.client.Post(ctx, id, u.name, text)
	if err != nil {
		return err
	}
	u.say("posts message %d, and again, which is message %d", first.Number, second.Number)
	return nil
}

// see waits for the next n messages.
func (u *user) see(n int) error {
	for range n {
		m, err := u.feed.Next()
		if err != nil {
			return fmt.Errorf("%s watches: %w", u.name, err)
		}
		if m.Number != u.last+1 {
			return fmt.Errorf("%s sees message %d after %d", u.name, m.Number, u.last)
		}
		u.last = m.Number
		u.say("sees    %d  %s: %s", m.Number, m.Author, m.Text)
	}
	return nil
}

// account fails unless each message has its event, each message of a user has its job and its reply, and there are no dead
// letters.
func (d demo) account(ctx context.Context) error {
	var messages, questions, logged, jobs, letters int
	err := d.pool.QueryRow(ctx, `
		SELECT
			(SELECT count(*) FROM chat.messages WHERE thread_id = $2),
			(SELECT count(*) FROM chat.messages WHERE thread_id = $2 AND role = 'user'),
			(SELECT count(*) FROM outbox.log WHERE tenant_id = $1),
			(SELECT count(*) FROM outbox.event_status WHERE tenant_id = $1 AND status = 'delivered'),
			(SELECT count(*) FROM outbox.dead_letters WHERE tenant_id = $1)`,
		d.tenant, d.thread).Scan(&messages, &questions, &logged, &jobs, &letters)
	if err != nil {
		return fmt.Errorf("read account: %w", err)
	}
	_, _ = fmt.Fprintf(d.out, "messages %d (%d by users), events in the log %d, jobs done %d, dead letters %d\n",
		messages, questions, logged, jobs, letters)
	if messages != logged || questions != jobs || messages != 2*questions || letters != 0 {
		return errors.New("messages, events and jobs are inconsistent")
	}
	return nil
}
