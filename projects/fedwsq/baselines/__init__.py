"""What FedWSQ is compared with, beside what `shared.federated.algorithms` holds."""
