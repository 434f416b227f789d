package chatevents

func upcastPostedV1(old PostedV1) (Posted, error) {
	made := Posted{ID: old.ID}
	for _, usage := range old.Usage {
		made.Usage = append(made.Usage, Usage{Tokens: int64(usage.Tokens), Key: usage.Key})
	}
	return made, nil
}
