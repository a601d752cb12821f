package main

import (
	"context"
	"maps"
	"slices"

	"subjectbroker/cmd/sbctl/internal/complete"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// profileNames are the profiles of all subjects. They are read out of the
// document that export writes, which is where they are declared.
func (a *app) profileNames(ctx context.Context) []complete.Candidate {
	got, _ := call(ctx, a, "", &operatorv1.ExportRequest{}, operatorv1.OperatorServiceClient.Export)
	document, err := policy.Parse(got.GetDocument(), policy.Env{})
	if err != nil {
		return nil
	}
	var found []complete.Candidate
	for _, name := range slices.Sorted(maps.Keys(document.Profiles)) {
		found = append(found, complete.Candidate{Word: name, Help: "of " + document.Profiles[name].Subject})
	}
	return found
}
