package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/examples/threads/companion"
	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/hub"
	"github.com/outboxgen/outboxgen/examples/threads/web"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/queue"
)

const (
	// clientBuffer is how many messages a client may be behind before it is dropped.
	clientBuffer = 64
	// shutdownTimeout is how long requests may take once the service stops.
	shutdownTimeout = 10 * time.Second
)

// service is the chat: the server for requests, and the two listeners and the dispatcher in the background. Its outbox can be
// looked at under /outbox/, from this machine.
type service struct {
	clients   *hub.Hub
	page      *dashboard.Page
	handler   http.Handler
	broadcast *listener.Listener
	companion *listener.Listener
	replies   *queue.Dispatcher
}

func newService(pool *pgxpool.Pool) (*service, error) {
	s := &service{clients: hub.New(clientBuffer)}
	var err error
	s.broadcast, err = events.NewBroadcastListener(pool, &events.BroadcastHandler{Clients: s.clients}, listener.Config{})
	if err != nil {
		return nil, err
	}
	s.companion, err = events.NewCompanionListener(pool, &events.CompanionHandler{}, listener.Config{})
	if err != nil {
		return nil, err
	}
	s.replies, err = events.NewRepliesDispatcher(pool,
		&events.RepliesHandler{Companion: companion.New(pool, companion.Echo)}, queue.Config{})
	if err != nil {
		return nil, err
	}
	s.page, err = dashboard.New(dashboard.Config{Pool: pool, Prefix: "/outbox", ReadOnly: true, Title: "threads", Mask: events.MaskPayload})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", web.NewHandler(pool, s.clients))
	mux.Handle("/outbox/", s.page)
	s.handler = mux
	return s, nil
}

// run serves on l and runs all parts until ctx ends or one of them fails. It closes l.
func (s *service) run(ctx context.Context, l net.Listener) error {
	defer func() { _ = l.Close() }()
	// Before the first client connects. A new listener starts here, and skips the messages that were posted while nobody was
	// connected; clients find those in the table of messages.
	switch _, err := s.broadcast.Drain(ctx); {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	parts := []func(context.Context) error{
		s.broadcast.Run,
		s.companion.Run,
		s.replies.Run,
		func(ctx context.Context) error { return s.serve(ctx, l) },
	}
	errs := make([]error, len(parts))
	var running sync.WaitGroup
	for i, part := range parts {
		running.Go(func() {
			errs[i] = part(ctx)
			stop() // no part continues without the others
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// serve answers requests until ctx ends. Streams end then, and other requests are finished.
func (s *service) serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: s.handler, ReadHeaderTimeout: 10 * time.Second}
	server.RegisterOnShutdown(s.clients.Close)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("stop serving: %w", err), server.Close())
	}
	return nil
}
