package userevents

func upcastUserCreatedV1(old UserCreatedV1) (UserCreated, error) {
	return UserCreated{UserID: old.UserID}, nil
}
