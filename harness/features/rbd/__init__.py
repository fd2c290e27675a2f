"""Images of Ceph RBD: a pool that a host uses is a storage in use, on which runs create images of their own.

`pool.sh` looks at a pool with the commands of Ceph, by the host's own configuration and keyring. A pool is the same if
the id of its cluster and its number there are the same. `images.py` creates the images. The name of an image ends with
a random token, which is also in its metadata, and the creation log has both. An image is removed only if its id and its
token are those of the log.

The kernel of the host maps each image, so that fio can fill it and measure it there. The guest of a mode gets this
device (`client = "krbd"`), or QEMU opens the image itself (`client = "librbd"`). The images have no exclusive lock, so
that both use them in turn without waiting for it. In both cases the twin is fio on the mapped image. The results say
that.

On a node of Proxmox VE, the storage has the client (`krbd`), and Proxmox VE creates and removes the images, as volumes
of a VM. `open_volume` in `images.py` maps them on the node with the login of the storage. The run holds the device
open, because Proxmox VE unmaps it whenever it stops the VM.

If all OSDs of the cluster are on the host itself, its disks show what reaches them: `replicas.py` compares these bytes
with those of fio times the replicas of the pool.
"""
