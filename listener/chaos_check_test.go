package listener_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// fact is an event of a transaction that committed, as that transaction itself recorded it, where pruning does not
// delete it.
type fact struct {
	ID     uuid.UUID
	Seq    int64
	Bucket int
	Entity string // "" for an event without a partition key
	N      int    // of the entity, from 1 without gaps
}

// chaosResult compares what a reader heard with the facts. Lost, Duplicate, Phantom and Disordered are faults.
type chaosResult struct {
	Facts, Heard                         int
	Lost, Duplicate, Phantom, Disordered int
	Stragglers                           int
}

// checkHeard compares what a reader heard, in order, with the facts. A straggler is heard after an event of a higher
// seq. shards is the number of readers in seq order that heard is composed of; 0 if there is no order by seq.
func checkHeard(facts []fact, heard []uuid.UUID, shards int) chaosResult {
	v := chaosResult{Facts: len(facts), Heard: len(heard)}
	byID := make(map[uuid.UUID]*fact, len(facts))
	for i := range facts {
		byID[facts[i].ID] = &facts[i]
	}
	times := make(map[uuid.UUID]int, len(facts))
	latest := make(map[string]int)
	highest := make([]int64, max(shards, 1))
	for _, id := range heard {
		f := byID[id]
		if f == nil {
			v.Phantom++
			continue
		}
		if times[id]++; times[id] > 1 {
			v.Duplicate++
			continue
		}
		if f.Entity != "" {
			if f.N < latest[f.Entity] {
				v.Disordered++
			}
			latest[f.Entity] = max(latest[f.Entity], f.N)
		}
		if shards > 0 {
			top := &highest[f.Bucket%shards]
			if f.Seq < *top {
				v.Stragglers++
			}
			*top = max(*top, f.Seq)
		}
	}
	v.Lost = len(facts) - len(times)
	return v
}

func TestChaosChecker(t *testing.T) {
	t.Parallel()
	facts := make([]fact, 6)
	for i := range facts {
		facts[i] = fact{ID: uuid.New(), Seq: int64(10 + i), Bucket: i % 2, Entity: []string{"a", "b"}[i%2], N: i/2 + 1}
	}
	facts[5].Entity = ""
	heard := func(is ...int) (ids []uuid.UUID) {
		for _, i := range is {
			if i < 0 {
				ids = append(ids, uuid.New())
			} else {
				ids = append(ids, facts[i].ID)
			}
		}
		return ids
	}
	for name, c := range map[string]struct {
		heard  []uuid.UUID
		shards int
		want   chaosResult
	}{
		"in order":   {heard(0, 1, 2, 3, 4, 5), 1, chaosResult{Facts: 6, Heard: 6}},
		"straggler":  {heard(0, 2, 1, 5, 3, 4), 1, chaosResult{Facts: 6, Heard: 6, Stragglers: 3}},
		"two shards": {heard(1, 0, 2, 5, 3, 4), 2, chaosResult{Facts: 6, Heard: 6, Stragglers: 1}},
		"concurrent": {heard(1, 0, 2, 5, 3, 4), 0, chaosResult{Facts: 6, Heard: 6}},
		"lost":       {heard(0, 1, 3, 4), 1, chaosResult{Facts: 6, Heard: 4, Lost: 2}},
		"duplicate":  {heard(0, 1, 2, 3, 4, 5, 0), 1, chaosResult{Facts: 6, Heard: 7, Duplicate: 1}},
		"phantom":    {heard(0, 1, -1, 2, 3, 4, 5), 1, chaosResult{Facts: 6, Heard: 7, Phantom: 1}},
		"disordered": {heard(2, 1, 0, 3, 4, 5), 0, chaosResult{Facts: 6, Heard: 6, Disordered: 1}},
	} {
		require.Equal(t, c.want, checkHeard(facts, c.heard, c.shards), name)
	}
}
