package cards

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/consume/kafka"
	"github.com/outboxgen/outboxgen/consume/receive"
)

// look is how often an idle projection checks for a new generation.
const look = time.Second

// Run projects until ctx ends, and then returns nil. It returns an error if Kafka does not answer at the start or refuses
// permanently, or if nothing but dead letters arrives. Nothing is lost then: the next Run continues from there.
func (p *Projection) Run(ctx context.Context) error {
	for {
		generation, err := p.generation(ctx)
		if err == nil {
			err = p.runGeneration(ctx, generation)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, errRebuilt):
			return err
		}
		p.cfg.Receive.Logger.Info("projection is rebuilt", "generation", generation+1)
	}
}

// runGeneration returns errRebuilt when the generation is over.
func (p *Projection) runGeneration(ctx context.Context, generation int64) error {
	cfg := p.cfg.Receive
	cfg.Begin = func(ctx context.Context, tx pgx.Tx) error { return p.within(ctx, tx, generation) }
	receiver, err := kafka.New(p.pool, p.consumer, kafka.Config{
		Brokers: p.cfg.Brokers, Options: p.cfg.Options, Topics: []string{Topic}, Group: groupOf(generation), Receive: cfg,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		p.watch(ctx, generation, stop)
	}()
	err = receiver.Run(ctx)
	stop(nil)
	<-watched
	if cause := context.Cause(ctx); err == nil && errors.Is(cause, errRebuilt) {
		return cause
	}
	return err
}

// watch ends ctx when the generation is over, so that a projection that gets no messages notices it.
func (p *Projection) watch(ctx context.Context, generation int64, stop context.CancelCauseFunc) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now, err := p.generation(ctx); err == nil && now != generation {
			stop(errRebuilt)
		}
	}
}

// within locks the generation in tx, so that Rebuild waits for tx. It ends the run if the generation is over.
func (p *Projection) within(ctx context.Context, tx pgx.Tx, generation int64) error {
	var now int64
	if err := tx.QueryRow(ctx, "SELECT number FROM cards.generation FOR SHARE").Scan(&now); err != nil {
		return err
	}
	if now != generation {
		return receive.Stop(errRebuilt)
	}
	return nil
}
