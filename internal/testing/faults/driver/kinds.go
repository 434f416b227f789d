package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
	"github.com/outboxgen/outboxgen/internal/testing/suspend"
)

// kinds returns all kinds of faults. The shares are those of a release: of 2,000 faults 500 are SIGKILL of a process, 300
// SIGSTOP, 100 immediate restarts of the server and 1,000 connections that are cut.
func kinds() []fault {
	all := []fault{
		{"kill a worker", laneKill, 130, "", killed(shop.Worker)},
		{"kill a writer", laneKill, 60, "", killed(shop.Writer)},
		{"kill a consumer", laneKill, 60, "", killed(shop.Consumer)},
		{"poison event", laneKill, 0, "", told(shop.Writer, shop.TellPoison, false)},
		{"memory of a worker exhausted", laneKill, 0, "", told(shop.Worker, shop.TellEat, true)},
		{"graceful restart of a worker", laneKill, 0, "", restarted(false)},
		{"worker with a wrong clock", laneKill, 0, needsClock, restarted(true)},
		{"rolling deployment", laneKill, 0, "", deployed},

		{"stop a worker past its leases", laneStop, 90, "", stopped(shop.Worker, shop.Lease+500*time.Millisecond)},
		{"stop a consumer", laneStop, 30, "", stopped(shop.Consumer, 2*time.Second)},
		{"stop a writer", laneStop, 30, "", stopped(shop.Writer, time.Second)},
		{"late commit", laneStop, 0, "", told(shop.Writer, shop.TellLate, false)},
		{"burst of a tenant", laneStop, 0, "", told(shop.Writer, shop.TellBurst, false)},
	}
	all = append(all, serverKinds()...)
	all = append(all, networkKinds()...)
	all = append(all, brokerKinds()...)
	return append(all, operatorKinds()...)
}

// take returns a process of a role to which nothing is done at the moment. The caller unlocks its fault.
func (d *driver) take(ctx context.Context, role string, r *rand.Rand) (*slot, error) {
	of := d.slots[role]
	first := r.IntN(len(of))
	for {
		for i := range of {
			if s := of[(first+i)%len(of)]; s.fault.TryLock() {
				return s, nil
			}
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return nil, fmt.Errorf("wait for a %s: %w", role, err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// upTo is a random time between half of d and d.
func upTo(r *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(r.Int64N(int64(d/2)))
}

const stopPatience = 15 * time.Second

func killed(role string) func(context.Context, *driver, *rand.Rand) error {
	return func(ctx context.Context, d *driver, r *rand.Rand) error {
		s, err := d.take(ctx, role, r)
		if err != nil {
			return err
		}
		defer s.fault.Unlock()
		for { // another one if this one ends for another reason
			s.awaitReady()
			before := s.killed()
			if err := s.end(syscall.SIGKILL, stopPatience); err != nil || s.killed() > before {
				return err
			}
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return err
			}
		}
	}
}

func stopped(role string, length time.Duration) func(context.Context, *driver, *rand.Rand) error {
	return func(ctx context.Context, d *driver, r *rand.Rand) error {
		s, err := d.take(ctx, role, r)
		if err != nil {
			return err
		}
		defer s.fault.Unlock()
		s.awaitReady()
		for s.signal(suspend.Stop) != nil {
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return err
			}
		}
		err = pause(ctx, length)
		if cont := s.signal(suspend.Continue); cont != nil && !errors.Is(cont, errNone) {
			return cont
		}
		return err
	}
}

// told tells a process something, which ends it or not.
func told(role, word string, ends bool) func(context.Context, *driver, *rand.Rand) error {
	return func(ctx context.Context, d *driver, r *rand.Rand) error {
		s, err := d.take(ctx, role, r)
		if err != nil {
			return err
		}
		defer s.fault.Unlock()
		for { // another one if this one ends for another reason
			s.awaitReady()
			_, _, ended := s.now()
			if err := s.tell(word); err != nil || ended == nil {
				if pause(ctx, 50*time.Millisecond) != nil {
					return err
				}
				continue
			}
			if !ends {
				return nil
			}
			select {
			case <-ended:
				return nil
			case <-time.After(time.Minute):
				return fmt.Errorf("%s does not end: %w", s.name, s.signal(syscall.SIGKILL))
			}
		}
	}
}

// restarted ends a worker gracefully. The clock of the next one may be wrong.
func restarted(clock bool) func(context.Context, *driver, *rand.Rand) error {
	return func(ctx context.Context, d *driver, r *rand.Rand) error {
		s, err := d.take(ctx, shop.Worker, r)
		if err != nil {
			return err
		}
		defer s.fault.Unlock()
		s.mu.Lock()
		s.clock = clock
		s.mu.Unlock()
		s.awaitReady()
		return s.end(syscall.SIGTERM, stopPatience)
	}
}

// deployed replaces the workers and writers one after the other by those of the other edition. Consumers know both.
func deployed(_ context.Context, d *driver, _ *rand.Rand) error {
	d.edition.Store(3 - d.edition.Load())
	for _, role := range []string{shop.Worker, shop.Writer} {
		for _, s := range d.slots[role] {
			s.fault.Lock()
			s.awaitReady()
			err := s.end(syscall.SIGTERM, stopPatience)
			s.fault.Unlock()
			if err != nil {
				return err
			}
		}
	}
	return nil
}
