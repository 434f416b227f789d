package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/examples/users/user"
)

// shown is how many cards are printed.
const shown = 6

// show prints the first cards.
func (d demo) show(ctx context.Context) error {
	all, err := cards.List(ctx, d.cards, d.tenant)
	if err != nil {
		return err
	}
	for _, c := range all[:min(len(all), shown)] {
		if c.Deleted {
			d.say("  %s  version %d  deleted", c.UserID, c.Version)
		} else {
			d.say("  %s  version %d  %s <%s>", c.UserID, c.Version, c.Name, c.Email)
		}
	}
	d.say("  and %d more", max(len(all)-shown, 0))
	return nil
}

// account fails unless the cards match the table of users.
func (d demo) account(ctx context.Context) error {
	users, err := user.List(ctx, d.users, d.tenant)
	if err != nil {
		return err
	}
	var deleted, events int
	err = d.users.QueryRow(ctx, `
		SELECT
			(SELECT count(*) FROM users.users WHERE tenant_id = $1 AND deleted_at IS NOT NULL),
			(SELECT count(*) FROM outbox.log WHERE tenant_id = $1)`, d.tenant).Scan(&deleted, &events)
	if err != nil {
		return fmt.Errorf("read account: %w", err)
	}
	all, err := cards.List(ctx, d.cards, d.tenant)
	if err != nil {
		return err
	}
	tombstones, wrong := compare(users, all)
	d.say("events %d, users %d, cards %d, deleted %d, tombstones %d, wrong cards %d",
		events, len(users), len(all)-tombstones, deleted, tombstones, len(wrong))
	if len(wrong) > 0 || deleted != tombstones || len(users)+deleted != people {
		return errors.Join(append(wrong, errors.New("users and cards differ"))...)
	}
	return nil
}

// compare returns how many cards are tombstones, and the errors in the others.
func compare(users []user.User, all []cards.Card) (tombstones int, wrong []error) {
	live := make(map[uuid.UUID]cards.Card)
	for _, c := range all {
		if c.Deleted {
			tombstones++
		} else {
			live[c.UserID] = c
		}
	}
	for _, u := range users {
		c, found := live[u.ID]
		delete(live, u.ID)
		switch {
		case !found:
			wrong = append(wrong, fmt.Errorf("user %s has no card", u.ID))
		case c.Version != u.Version || c.Name != u.Name || c.Email != u.Email || !c.JoinedAt.Equal(u.JoinedAt):
			wrong = append(wrong, fmt.Errorf("user %s is at version %d, the card at %d", u.ID, u.Version, c.Version))
		}
	}
	for id := range live {
		wrong = append(wrong, fmt.Errorf("the card of %s has no user", id))
	}
	return tombstones, wrong
}
