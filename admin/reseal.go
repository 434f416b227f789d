package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/seal"
)

// ResealReport says which sealed values are stored, and what became of them.
type ResealReport struct {
	Rows []ResealRow `json:"rows"`
}

// ResealRow is about the values of one table that one key has sealed.
type ResealRow struct {
	Table string `json:"table"`
	// Key is the id of the key. A keyring may have a key per value: then those after the first hundred of a table are
	// counted together, as "others".
	Key string `json:"key"`
	// Values is how many values the key had sealed, those that are sealed with the new key among them.
	Values int64 `json:"values"`
	// Changed is how many of them are sealed with the new key now; 0 in a dry run.
	Changed int64 `json:"changed"`
	// Refused says why others are not, and how many; nil if there are none.
	Refused map[string]int64 `json:"refused,omitempty"`
}

// The reasons in ResealRow.Refused that are not those of a keyring.
const (
	// RefusedMoved: somebody has changed the row meanwhile. The next reseal takes it.
	RefusedMoved = "the row was changed meanwhile"
	// RefusedForm: the message is kept in a form in which its payload is inside a text.
	RefusedForm = "the payload is inside a text"
)

const (
	resealPage = 200 // rows per transaction
	mostKeys   = 100 // keys of a table that are counted apart
)

// Reseal seals what is stored again: each value that another key than to has sealed, in the tables events, log,
// dead_letters, parked, inbox_messages and inbox_quarantined. It finds the values by their form, whatever topic they are
// of. k has the keys; if to is "", each value is sealed with the key with which k seals values of its tenant. Values that
// do not open stay as they are, and the report says why.
//
// In a dry run it only counts, and k and to may be zero. Otherwise each page of rows is a transaction. The first that
// changes something writes the audit row, which the others count up. When ctx ends, the page that is under way is
// finished. Reseal may be called again, and then continues; dispatchers, listeners and consumers may run meanwhile if they
// have both keys. It needs the role outbox_operator. act.Limit and act.Rate have no effect.
func (a *Admin) Reseal(ctx context.Context, k seal.Keyring, to string, act Act) (ResealReport, error) {
	const what = "reseal"
	act = a.actAs(act)
	if err := act.validate(); err != nil {
		return ResealReport{}, fmt.Errorf("%s: %w", what, err)
	}
	if k == nil && !act.DryRun {
		return ResealReport{}, fmt.Errorf("%s: %w", what, argumentError("Keyring", "there is none (nil)"))
	}
	r := resealing{a: a, act: act, k: k, to: to, counts: make(map[[2]string]*ResealRow)}
	for _, t := range resealed {
		for after := (rowKey{}); ; {
			items, err := t.page(ctx, a.db.EachPlanned(a.pool), after)
			if err == nil && len(items) > 0 {
				after = items[len(items)-1].rowKey
				err = r.take(ctx, t, items)
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return r.report(), a.db.Wrap(what, err)
			}
			if len(items) < resealPage {
				break
			}
		}
	}
	return r.report(), nil
}

// resealing is one call of Reseal.
type resealing struct {
	a       *Admin
	act     Act
	k       seal.Keyring
	to      string
	counts  map[[2]string]*ResealRow // by table and key
	keys    map[string]int           // how many of a table are counted apart
	auditNo int64
}

// rowKey is the primary key of a row of one of the tables.
type rowKey struct {
	no    int64
	id    uuid.UUID
	group string
}

// stored is a row with a payload in which something may be sealed; nil if it is not.
type stored struct {
	rowKey
	event   sealing.Event
	payload []byte
	whole   []byte // of which payload is a part; nil if it is all
}

// take seals the values of items again, or counts them.
func (r *resealing) take(ctx context.Context, t resealedTable, items []stored) error {
	var changes []change
	for _, it := range items {
		if it.payload == nil {
			continue
		}
		found, valid := sealing.Find(it.payload)
		if !valid || len(found) == 0 {
			r.refuse(t.name, "unknown", RefusedForm, 1)
			continue
		}
		for id, n := range found {
			r.row(t.name, id).Values += int64(n)
		}
		if r.act.DryRun {
			continue
		}
		key, err := r.target(ctx, it.event.Tenant)
		if err != nil {
			if !errors.Is(err, seal.ErrNoKey) && !errors.Is(err, seal.ErrDestroyed) {
				return err
			}
			for id, n := range found {
				r.refuse(t.name, id, "nothing to seal with: "+err.Error(), int64(n))
			}
			continue
		}
		payload, changed, refused := sealing.Reseal(ctx, r.k, key, it.event, it.payload)
		for id, why := range refused {
			r.refuse(t.name, id, why.Error(), int64(found[id]-changed[id]))
		}
		if len(changed) > 0 {
			changes = append(changes, change{it, payload, changed})
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return r.write(ctx, t, changes)
}

// change is a row that gets another payload.
type change struct {
	stored
	now    []byte
	values sealing.Found
}

// write writes the changes of a page in one transaction.
func (r *resealing) write(ctx context.Context, t resealedTable, changes []change) error {
	var taken []bool
	var no int64
	err := finished(ctx, func(ctx context.Context) error {
		return r.a.inTx(ctx, "reseal", func(q *queries.Queries) error {
			taken, no = make([]bool, len(changes)), r.auditNo
			rows := int64(0)
			for i, c := range changes {
				was, now := c.payload, c.now
				if c.whole != nil {
					was, now = c.whole, bytes.Replace(c.whole, c.payload, c.now, 1)
				}
				n, err := t.update(ctx, q, c.rowKey, was, now)
				if err != nil {
					return err
				}
				taken[i] = n > 0
				rows += n
			}
			if rows == 0 {
				return nil
			}
			var err error
			no, err = r.act.auditPart(ctx, q, r.auditNo, "reseal", auditScope{Key: r.to}, rows, 0)
			return err
		})
	})
	if err != nil {
		return err
	}
	r.auditNo = no
	for i, c := range changes {
		for id, n := range c.values {
			if taken[i] {
				r.row(t.name, id).Changed += int64(n)
			} else {
				r.refuse(t.name, id, RefusedMoved, int64(n))
			}
		}
	}
	return nil
}

// target returns the key that values of tenant are sealed with.
func (r *resealing) target(ctx context.Context, tenant uuid.NullUUID) (key *seal.Key, err error) {
	if r.to == "" {
		key, err = r.k.SealingKey(ctx, tenant)
	} else {
		key, err = r.k.OpeningKey(ctx, tenant, r.to)
	}
	switch {
	case err != nil && r.to != "":
		return nil, fmt.Errorf("key %s: %w", r.to, err)
	case err == nil && key == nil:
		return nil, errors.New("the keyring returned no key and no error")
	}
	return key, err
}

func (r *resealing) row(table, key string) *ResealRow {
	of := r.counts[[2]string{table, key}]
	if of == nil {
		if r.keys == nil {
			r.keys = make(map[string]int)
		}
		if r.keys[table]++; r.keys[table] > mostKeys && key != "others" {
			return r.row(table, "others")
		}
		of = &ResealRow{Table: table, Key: key}
		r.counts[[2]string{table, key}] = of
	}
	return of
}

func (r *resealing) refuse(table, key, reason string, n int64) {
	of := r.row(table, key)
	if of.Refused == nil {
		of.Refused = make(map[string]int64)
	}
	of.Refused[reason] += n
}

// report returns the rows by table, in the order in which Reseal takes them, and key.
func (r *resealing) report() ResealReport {
	report := ResealReport{Rows: []ResealRow{}}
	for _, t := range resealed {
		for _, at := range slices.SortedFunc(maps.Keys(r.counts), func(a, b [2]string) int { return strings.Compare(a[1], b[1]) }) {
			if at[0] == t.name {
				report.Rows = append(report.Rows, *r.counts[at])
			}
		}
	}
	return report
}

// dataOf returns the part of the body of a message, whose envelope is given, that is the payload.
func dataOf(envelope, body []byte) []byte {
	var e struct {
		ContentType string `json:"content_type"`
	}
	if json.Unmarshal(envelope, &e) != nil || !strings.HasPrefix(strings.ToLower(e.ContentType), "application/cloudevents+json") {
		return body
	}
	var structured struct {
		Data json.RawMessage `json:"data"`
	}
	if json.Unmarshal(body, &structured) != nil || structured.Data == nil {
		return body
	}
	return structured.Data
}
