package core

import "container/heap"

// fairQueue has the tasks that wait for a worker and have turns. They come out in rounds, in each of which a turn has one
// task: a turn with a hundred tasks delays the one task of another by one of them.
type fairQueue struct {
	tasks tasksByRound
	last  map[Turn]int64 // the round of the latest task of each turn that has one in tasks or had one in this round
	now   int64          // the round of the latest task that came out
	seq   int64
}

// enter gives a task its place among all that wait. A task without a turn is in the round of now.
func (q *fairQueue) enter(t *Task) {
	q.seq++
	t.round, t.order = q.now, q.seq
}

// push adds a task that has a turn, and has entered.
func (q *fairQueue) push(t *Task) {
	if last, is := q.last[t.turn()]; is {
		t.round = max(t.round, last+1)
	}
	if q.last == nil {
		q.last = make(map[Turn]int64)
	}
	q.last[t.turn()] = t.round
	heap.Push(&q.tasks, t)
}

// before reports whether the next task comes before t, which has entered.
func (q *fairQueue) before(t *Task) bool {
	return len(q.tasks) > 0 && q.tasks[0].comesBefore(t)
}

// first returns the next task; nil if there is none.
func (q *fairQueue) first() *Task {
	if len(q.tasks) == 0 {
		return nil
	}
	return q.tasks[0]
}

// pop takes the next task out.
func (q *fairQueue) pop() *Task {
	t := heap.Pop(&q.tasks).(*Task)
	q.now = max(q.now, t.round)
	if len(q.tasks) == 0 {
		clear(q.last)
	}
	return t
}

// restore restores the order after tasks were taken out.
func (q *fairQueue) restore() { heap.Init(&q.tasks) }

// turn returns the turn of t.
func (t *Task) turn() Turn { return Turn{t.Lane, t.Turn} }

func (t *Task) comesBefore(o *Task) bool {
	return t.round < o.round || t.round == o.round && t.order < o.order
}

// tasksByRound is a heap.
type tasksByRound []*Task

func (s tasksByRound) Len() int           { return len(s) }
func (s tasksByRound) Less(i, j int) bool { return s[i].comesBefore(s[j]) }
func (s tasksByRound) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *tasksByRound) Push(t any)        { *s = append(*s, t.(*Task)) }
func (s *tasksByRound) Pop() any {
	last := len(*s) - 1
	t := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return t
}
