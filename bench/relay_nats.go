package main

import (
	"context"
	"errors"
	"os"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/nats"
)

func relayNATS(n int) workload {
	return relayBeside("relay-nats", "NATS JetStream", "NATS is a server in this process, with a stream in files. The loop publishes "+
		"asynchronously over one connection and waits for all confirmations; it would send an event although the one before with its key was refused.",
		n, startNATS)
}

const relaySubject = "bench.orders"

func startNATS(ctx context.Context) (_ *relayBroker, err error) {
	dir, err := os.MkdirTemp("", "outboxgen-bench-nats-")
	if err != nil {
		return nil, err
	}
	stop := func() error { return os.RemoveAll(dir) }
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		return nil, err
	}
	s.Start()
	stop = func() error {
		s.Shutdown()
		s.WaitForShutdown()
		return os.RemoveAll(dir)
	}
	if !s.ReadyForConnections(time.Minute) {
		return nil, errors.New("the NATS server does not start")
	}
	conn, err := natsgo.Connect(s.ClientURL())
	if err != nil {
		return nil, err
	}
	stop = func() error {
		conn.Close()
		s.Shutdown()
		s.WaitForShutdown()
		return os.RemoveAll(dir)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{relaySubject}})
	if err != nil {
		return nil, err
	}
	return &relayBroker{
		destination: relaySubject,
		ours: func() (publish.Publisher, func(), error) {
			p, err := nats.New(nats.Config{URL: s.ClientURL(), Logger: quiet})
			if err != nil {
				return nil, nil, err
			}
			return p, p.Close, nil
		},
		hand: func(ctx context.Context, db *database) error {
			conn, err := natsgo.Connect(s.ClientURL())
			if err != nil {
				return err
			}
			defer conn.Close()
			js, err := jetstream.New(conn)
			if err != nil {
				return err
			}
			return relayLoop(ctx, db, natsMessage, func(ctx context.Context, part []*natsgo.Msg) error { return sendNATS(ctx, js, part) })
		},
		arrived: func(ctx context.Context) (int, error) {
			info, err := stream.Info(ctx)
			if err != nil {
				return 0, err
			}
			return int(info.State.Msgs), nil
		},
		stop: func() error { return stop() },
	}, nil
}

func natsMessage(e *handEvent) *natsgo.Msg {
	h := natsgo.Header{"content-type": {"application/json"}, jetstream.MsgIDHeader: {e.id.String()}}
	handHeaders(e, func(name, value string) { h["ce-"+name] = []string{value} })
	return &natsgo.Msg{Subject: relaySubject, Header: h, Data: e.payload}
}

func sendNATS(ctx context.Context, js jetstream.JetStream, part []*natsgo.Msg) error {
	futures := make([]jetstream.PubAckFuture, len(part))
	for i, m := range part {
		var err error
		if futures[i], err = js.PublishMsgAsync(m); err != nil {
			return err
		}
	}
	for _, f := range futures {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
