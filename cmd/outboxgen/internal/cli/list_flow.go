package cli

import "github.com/outboxgen/outboxgen/generator/model"

// limitRow is a limit of a topic, as the YAML has it.
type limitRow struct {
	Per         string `json:"per,omitempty"`
	Concurrency int    `json:"concurrency,omitempty"`
	Rate        string `json:"rate,omitempty"`
}

func newLimitRows(limits []model.Limit) []limitRow {
	var rows []limitRow
	for _, l := range limits {
		rows = append(rows, limitRow{Per: l.Per, Concurrency: l.Concurrency, Rate: l.Rate.String()})
	}
	return rows
}

type batchRow struct {
	Size int    `json:"size"`
	Wait string `json:"wait"`
}

func newBatchRow(b model.Batch) *batchRow {
	if b.Size == 0 {
		return nil
	}
	return &batchRow{Size: b.Size, Wait: span(b.Wait)}
}
