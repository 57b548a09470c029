"""The rank's side: model, sharding, observation, faults and modes. Started by torchrun as `-m detsweep.worker`."""
